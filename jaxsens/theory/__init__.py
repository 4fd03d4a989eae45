"""What is proved of every input: Lemma 5 with its constants, certified bounds, and Theorem 1's restrictions."""

from __future__ import annotations

from jaxsens.theory.certified.bound import CertifiedBound, certified_bound
from jaxsens.theory.hard_attention.checker import Verdict, check
from jaxsens.theory.hard_attention.restrict import MisclassifiedPair, misclassified_pair, restrict
from jaxsens.theory.hard_attention.restriction import Restriction, RestrictionRefused
from jaxsens.theory.lemma5 import Lemma5, lemma5
from jaxsens.theory.search.problem import Search
from jaxsens.theory.search.worst_input import SearchInterrupted, WorstInput, worst_input

__all__ = [
    "CertifiedBound",
    "Lemma5",
    "MisclassifiedPair",
    "Restriction",
    "RestrictionRefused",
    "Search",
    "SearchInterrupted",
    "Verdict",
    "WorstInput",
    "certified_bound",
    "check",
    "lemma5",
    "misclassified_pair",
    "restrict",
    "worst_input",
]
