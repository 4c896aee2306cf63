//! Segments and port membership: the model, its compiled program, and the decision for one flow.
