"""What rounding may cost: bands by type, differences between rows, values no weight should have."""
