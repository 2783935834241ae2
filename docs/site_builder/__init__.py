"""The builder of the documentation site."""
