"""The front process: requests, the controller, the data between workers, and the workers' life."""
