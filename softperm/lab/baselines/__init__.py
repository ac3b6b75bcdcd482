"""The systems that the paper compares with π-GNN; ``softperm.lab.systems`` lists them."""
