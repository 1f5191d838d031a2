"""From an image's recipe to the commands that build it. Pure."""
