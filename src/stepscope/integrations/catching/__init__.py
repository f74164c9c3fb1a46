"""Values that a script hands to another tracker, recorded in our run as well: one file per tracker."""
