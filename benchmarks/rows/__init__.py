"""The jobs that are measured, a module each: what they compare, why that is fair, and their data."""
