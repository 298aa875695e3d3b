"""What several protocols share: trees, claims, ballots, a judging model, sections. Protocols may import it; it imports none."""
