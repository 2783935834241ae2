"""What travels over HTTP: bodies of requests and responses, queries, samples for viewers."""
