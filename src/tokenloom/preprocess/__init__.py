"""Text into `.bin`/`.idx`: sources of documents, tokenizers, and the pipeline between them."""
