"""How things reach a person's eye: text made harmless, pieces of HTML, colours, figures."""
