# Provisional: builds everything that is there. (Being replaced.)
