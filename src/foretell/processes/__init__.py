"""Processes: children with limits, pools of them, the lock of a device, messages in lines."""
