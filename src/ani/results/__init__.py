"""Result files, and what is made of records: statistics, scores and tables."""
