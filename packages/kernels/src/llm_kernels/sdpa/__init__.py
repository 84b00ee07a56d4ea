"""Back ends that rest on torch's fused attention, on any device."""
