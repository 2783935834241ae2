"""Parts of bilinq for other systems, one module for each; each needs the extra of its name."""
