"""What a stage costs at each configuration: curves, and the catalogue of devices, models and workflows."""
