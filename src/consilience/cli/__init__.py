"""The command line. Modules here import what is heavy inside functions, so that help comes at once."""
