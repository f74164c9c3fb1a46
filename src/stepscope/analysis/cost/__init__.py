"""What a run cost: time, energy, money, and the size of machine it needs."""
