"""A result as one HTML file that needs nothing else, and its pictures as files of their own.

    document.report(source, file)     read -> pictures -> page -> written whole or not at all

Each picture (`picture.Picture`) is a function of the JSON in a module of its own: `memory`, `time`, `timeline`, `topology`,
`pareto`, `scaling`, `search`. It carries the numbers it draws, which the page embeds, and the same numbers as a table.
"""
