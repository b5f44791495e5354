"""What front and worker say to each other, and over what."""
