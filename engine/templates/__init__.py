"""A chat becomes the text that the model was trained on."""
