"""Types of the HTTP API: bodies of requests and responses, queries, samples for viewers."""
