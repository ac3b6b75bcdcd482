"""The paper's studies: computed, recorded, drawn."""
