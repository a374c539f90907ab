"""Preprocesses a corpus into `.bin`/`.idx` pairs, as a resumable job."""
