"""What makes the documentation's pages out of Markdown, docstrings, commands and routes."""
