"""cosFormer inside other people's models; each module here needs the library that it is named after."""
