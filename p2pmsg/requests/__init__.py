"""Requests and replies: ask one of several, or all."""

from p2pmsg.requests.requester import Answers, Requester
from p2pmsg.requests.responder import Responder

__all__ = ["Answers", "Requester", "Responder"]
