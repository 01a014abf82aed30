"""What a framework, or this project, says of a configuration."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Verdict:
    """Accepted, or refused by a link of the framework's chain with a message."""

    accepted: bool
    link: str = ""
    message: str = ""


ACCEPTED = Verdict(accepted=True)


def refused(link: str, fault: BaseException) -> Verdict:
    """Refused by an exception."""
    text = " ".join(str(fault).split()) or type(fault).__name__
    return Verdict(accepted=False, link=link, message=text)
