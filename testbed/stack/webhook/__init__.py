"""The admission webhook: gives pods that ask for a card our scheduler, or refuses them."""
