"""Result files, and what is made of records: statistics, scores, tables, sections of the page."""
