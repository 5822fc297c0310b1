"""What an audit found, for people: one HTML file, tables in the terminal, and JUnit XML for pipelines."""
