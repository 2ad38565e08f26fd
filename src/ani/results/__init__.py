"""The ground floor of everything measured: files, statistics, scores, tables; knows nothing about tasks or models."""
