"""Accounts of what lies in one place: their terms, and as mappings their sums by category."""

from zerobench.common.vocabulary import Category
from zerobench.estimate.memory.terms.terms import Term, Terms, add, hold, of_elements

PARAMETERS, GRADIENTS = Category.PARAMETERS, Category.GRADIENTS


def test_an_account_sums_its_terms_by_category_and_leaves_out_what_holds_nothing() -> None:
    held = Terms(Term(PARAMETERS, 3), Term(GRADIENTS, 5), Term(PARAMETERS, 4), Term(Category.STAGING, 0))
    assert dict(held) == {PARAMETERS: 7, GRADIENTS: 5}
    assert (len(held), len(held.terms), repr(held)) == (2, 3, repr({PARAMETERS: 7, GRADIENTS: 5}))
    assert dict(Terms(Term(PARAMETERS, 3), Term(PARAMETERS, -3))) == {}
    assert dict(held.of(GRADIENTS, Category.STAGING)) == {GRADIENTS: 5}


def test_accounts_are_added_term_by_term_and_a_plain_mapping_is_one_of_terms_without_words() -> None:
    elements = of_elements(PARAMETERS, 2, 1000, "weights", "here.py")
    whole = add(elements, {GRADIENTS: 5}, hold(PARAMETERS, 1, "one", "there.py"))
    assert whole.terms == (
        Term(PARAMETERS, 2000, "weights: 2 bytes x 1,000 elements", "here.py"),
        Term(GRADIENTS, 5),
        Term(PARAMETERS, 1, "one", "there.py"),
    )
