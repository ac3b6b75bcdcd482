"""The systems that the paper compares with π-GNN; ``softperm.lab.systems`` lists them.

Arguments that all networks and their layers share: ``features``, the size F of a vertex's features
or of a layer's input; ``edge_size``, the size of an edge's features; ``outputs``, the number C of
outputs; ``hidden``, the size H of hidden vectors and of a layer's output; ``layers`` or ``rounds``,
the number of rounds of message passing; ``dropout``, the rate after each round; ``positions``,
whether batches have the positions of vertices.
"""
