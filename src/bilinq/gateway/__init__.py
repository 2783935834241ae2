"""An OpenAI-compatible gateway: language models behind one address, each request where it pays best, under load."""
