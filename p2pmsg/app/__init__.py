"""Handlers: functions that are called for messages, jobs, requests and ticks.

`App` registers them; `Retry` and `DeadLetter` say what becomes of events whose handler raised.
"""

from p2pmsg.app.application import App
from p2pmsg.app.events import Event, Request
from p2pmsg.app.handler import HandlerStats
from p2pmsg.app.policy import DeadLetter, Retry

__all__ = ["App", "DeadLetter", "Event", "HandlerStats", "Request", "Retry"]
