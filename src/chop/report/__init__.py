"""WHAT A PERSON LOOKS AT: tables and plots of measured rows."""
