"""Looking at data: documents and samples as a person reads them."""
