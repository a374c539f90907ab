"""What bytes mean: the `.bin`/`.idx` pair, its reader, builder, merge and checks. The format is in FORMAT.md."""
