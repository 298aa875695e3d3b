"""What protocols share: trees, conclusions, answers, protected parts of a draft, parts of reports. It imports no protocol."""
