"""Fences round other libraries' private API, one file for each library."""
