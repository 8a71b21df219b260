"""The page: view records, the templates and charts that show them, and the HTML routes over the server's data."""
