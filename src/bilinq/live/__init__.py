"""The live scheduler: an object to embed (`scheduler`), and a durable service around it."""
