"""Read what other tools have written: arrays out, without the vendor's package."""
