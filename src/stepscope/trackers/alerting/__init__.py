"""The classes behind `stepscope.alerting`."""
