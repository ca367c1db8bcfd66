"""Requests and replies: ask one of several, or all."""

from p2pmsg.requests.requester import Answers, Requester
from p2pmsg.requests.responder import Responder
from p2pmsg.stats import RequesterStats

__all__ = ["Answers", "Requester", "RequesterStats", "Responder"]
