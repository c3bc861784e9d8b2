"""Published maths written out plainly, to time against and to compare numbers with. Not part of the package."""
