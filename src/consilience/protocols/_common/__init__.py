"""What several protocols share: trees, conclusions, extractable answers, parts of reports. It imports no protocol."""
