"""One tokenizer: of any library, loaded from its file, and the engines that encode many texts with it."""
