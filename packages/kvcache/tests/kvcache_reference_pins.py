"""Owns the model's pins: who holds how many references, until when."""

from dataclasses import dataclass


@dataclass
class ModelPin:
    drops: list  # deepest first
    retention: tuple
    tenant: str
    expires_at: float | None


class ReferencePins:
    def __init__(self):
        self.held = {}  # id -> pin
        self.quota = None
        self.quotas = {}

    def num_blocks(self, tenant=None):
        pins = self.held.values()
        return sum(len(pin.drops) for pin in pins if tenant is None or pin.tenant == tenant)

    def refusal(self, tenant, wanted):
        """The blocks wanted and the room for them, where that is too little."""
        limits = [(self.quota, self.num_blocks()), (self.quotas.get(tenant), self.num_blocks(tenant))]
        rooms = [max(0, quota - held) for quota, held in limits if quota is not None]
        return (wanted, min(rooms)) if rooms and wanted > min(rooms) else None

    def over(self, now_s):
        pins = self.held.items()
        return sorted(i for i, pin in pins if pin.expires_at is not None and pin.expires_at <= now_s)
