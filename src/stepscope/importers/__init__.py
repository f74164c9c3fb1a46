"""Read files of other tools into arrays, without the vendor's package."""
